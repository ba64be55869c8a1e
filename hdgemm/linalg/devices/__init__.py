"""Factorisations of arrays on devices: by tasks, and native on one device."""
