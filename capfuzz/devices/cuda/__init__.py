"""The real device: CUDA and HIP graphs through `torch.cuda`.

The implementation runs untouched; a mode looks on: at its ops (`watch`), or for a tenth of the cost at its calls (`calls`). In
eager and in capture it poisons what `torch.empty` returns (in capture the fill is a node of the graph), and notes which outside
memory the graph uses, so that a buffer that was freed is known before the replay. `device` says when which of the two looks.
Only a run that is repeated to find the guilty op is traced: then the capture keeps a copy of what every op wrote, as nodes of
the graph, and the copies are read after each replay.

Arrays go to the device and tensors come back through pinned memory (`staging`), many for one wait.
"""
