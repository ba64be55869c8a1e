"""The devices behind one small protocol."""
