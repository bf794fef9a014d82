"""The explorer's panels by subject, each a function of the source, a row and the canvas it draws on."""
