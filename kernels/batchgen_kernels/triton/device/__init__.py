"""What runs on the device, and under Triton's interpreter on the CPU.

Values are loaded in the tensor's type, computed in float32 and stored in the tensor's type. A row's bits depend on the
row alone: tile shapes and the order of every reduction are fixed, whatever else is in the batch.
"""
