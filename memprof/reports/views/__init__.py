"""Views: each decides the content of a report on one topic. `report`, `comparison` and `diff` combine them."""
