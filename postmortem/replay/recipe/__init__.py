"""The user's recipe: loading it, checking it, describing its errors."""
