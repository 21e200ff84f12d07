"""The image formats that are read, and the endings their files have."""

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""Formats by their names in Pillow."""
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
"""File endings that count as images when a folder is searched; a file given by name may have any."""
