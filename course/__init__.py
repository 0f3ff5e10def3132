"""Python around the kernels: arithmetic, layers, measurement, views, grading, and what builds the book."""
