"""One module per system that can change machines; each is a `driver.Driver`."""
