"""The real device: CUDA and HIP graphs through `torch.cuda`.

The implementation runs untouched; a dispatch mode (`watch`) looks on. In eager and in capture it poisons what `torch.empty`
returns (in capture the fill is a node of the graph), and notes which outside memory the graph uses, so that a buffer that was
freed is known before the replay. Only a run that is repeated to find the guilty op is traced: then the capture keeps a copy of
what every op wrote, as nodes of the graph, and the copies are read after each replay.
"""
