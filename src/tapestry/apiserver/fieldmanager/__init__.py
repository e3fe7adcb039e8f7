"""Server-side apply: who owns which fields, and what becomes of an object that several apply."""
