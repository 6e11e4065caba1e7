"""`aiozkqueue demo`: the main scenario on real input. A worker is killed, and an exact account is printed at the end.

`command` starts the server and the processes, `worker` is one of the processes, `records` has the messages that they
exchange through the queues, and `account` compares the input with the output. `constitution.txt` is the default text:
the Constitution of the United States with its amendments, in the public domain, from GNU miscfiles 1.5.
"""
