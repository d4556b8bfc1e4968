"""Known failure texts as data files by family, and the code that finds them."""
