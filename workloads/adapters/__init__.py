"""Models and data sets of other libraries as workloads; nothing is ever downloaded. The libraries: `pip install
'batch-size-study[adapters]'`."""
