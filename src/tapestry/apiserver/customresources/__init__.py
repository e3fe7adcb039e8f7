"""Custom resources: definitions, structural schemas, validation rules and conversion."""
