"""Tests of the room `call`."""
