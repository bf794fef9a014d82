"""What is known of operators: names, families, schemas, higher-order operators and cost formulas."""
