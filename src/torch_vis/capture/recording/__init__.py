"""What runs while a program is recorded: the dispatch mode and the tables that it fills."""
