"""What is said in a `Warning` header of writes that are accepted all the same."""
