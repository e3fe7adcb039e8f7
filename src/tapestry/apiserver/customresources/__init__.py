"""Custom resources: from a definition to a row of the table, and what its schema and rules demand."""
