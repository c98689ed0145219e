"""One module per fault; the catalogue is a literal tuple."""
