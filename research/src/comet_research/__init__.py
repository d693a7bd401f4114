"""Comet's functions inside other systems. A plug-in imports the other system only when it is used."""
