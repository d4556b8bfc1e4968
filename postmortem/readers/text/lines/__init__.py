"""From bytes to blocks of whole lines."""
