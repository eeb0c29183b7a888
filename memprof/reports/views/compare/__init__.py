"""Views of a comparison: several configurations side by side. `document` puts them together."""
