"""Readers of file formats: bytes in, rows or blocks of text out; a file each."""
