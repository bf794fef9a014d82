"""``DynamoGraphExtractor`` and what goes with it."""
