"""What an analysis found, as a person takes it up: data, a table, a figure."""
