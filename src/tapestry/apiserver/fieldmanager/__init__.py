"""Server-side apply: field ownership (managedFields) and merging of applied configurations."""
