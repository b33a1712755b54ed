"""A package, so that servers which all of its tests share end with the last of them."""
