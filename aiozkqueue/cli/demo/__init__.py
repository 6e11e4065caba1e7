"""`aiozkqueue demo`: the main job on real input, with a worker killed on the way, and an exact account at the end.

`command` starts the server and the processes, `worker` is one of those, `records` is what they send each other through
the queues, `account` compares what went in with what came out. `constitution.txt` is the text sent when none is given:
the Constitution of the United States with its amendments, in the public domain, as GNU miscfiles 1.5 has it.
"""
