"""The compute kernels of batchgen."""
