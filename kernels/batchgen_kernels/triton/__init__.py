"""The program for GPUs, in Triton. Importing `program` imports triton; `plan` needs NumPy alone."""
