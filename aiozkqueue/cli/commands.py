"""Every command of the command line: its name, where it is, and what a listing says of it."""

from __future__ import annotations

from typing import Final

from aiozkqueue.cli.lazy import Command, Commands

COMMANDS: Final = (
    Command("demo", "demo.command:demo", "Send a text through two queues, kill a worker, account for every line."),
    Command("zookeeper", "zookeeper:zookeeper", "Run a real ZooKeeper in the foreground, and print its address."),
    Command("put", "put:put", "Put messages into a queue, and print their ids."),
    Command("consume", "consume:consume", "Take messages, and print or process each in a transaction of its own."),
    Command("peek", "queues:peek", "Show the first messages without taking them. Fails with 1 when there is none."),
    Command(
        "stats",
        "queues:stats",
        "Show queues in figures: messages, claims, delays, dead letters, consumers. Fails with 1 when one is not "
        "there.",
    ),
    Command(
        "top",
        "top:top",
        "Show queues live: size, waiting, in flight, rates, oldest, dead letters. Ctrl-C ends it.",
    ),
    Command(
        "why",
        "why:why",
        "Tell the story of a message: who put it, who had it, how that went, and why it is where it is.",
    ),
    Command("state", "records:state", "Tell where a message stands. Fails with 1 when nothing is known of it."),
    Command(
        "history",
        "records:history",
        "Show messages that have ended, in the order in which they did. Fails with 1 when there is none.",
    ),
    Command(
        "consumers",
        "records:consumers",
        "Show who takes from a queue, where that runs, and what it holds. Fails with 1 when nobody does.",
    ),
    Command(
        "configure", "configure:command", "Show what has been decided for a queue, after changing what the options say."
    ),
    Command("pause", "pause:pause", "Hand out nothing more of these queues, to anybody, until resume."),
    Command("resume", "pause:resume", "Hand out messages of these queues again."),
    Command("purge", "queues:purge", "Delete every message that nobody holds. Dead letters stay."),
    Command("cancel", "alter:cancel", "Remove a message that nobody holds. Fails with 1 when it is held or absent."),
    Command(
        "update",
        "alter:update",
        "Replace the payload of a message that nobody holds. Fails with 1 when it is held or absent.",
    ),
    Command("move", "moves:move", "Move the messages that are in a queue now to another, and wait for the end."),
    Command(
        "moves",
        "moves:moves",
        "List the moves of the last days, and how far each has got. Fails with 1 when there is none.",
    ),
    Command(
        "doctor",
        "doctor:doctor",
        "Examine the servers and the queues: latency, limits, clocks, leftovers, access. Fails with 1 on an error.",
    ),
    Command(
        "clean",
        "records:clean",
        "Clean up now what running sessions clean at each queue's interval, and tell how much that was.",
    ),
    Command(
        "reap",
        "records:reap",
        "Hand on to all nodes the oldest messages of a sticky queue that their node has left waiting for too long.",
    ),
    Command("load", "transfer:load", "Put each row of Parquet, CSV (with a header) or JSON-lines files into a queue."),
    Command(
        "unload",
        "transfer:unload",
        "Move the messages of a queue to Parquet files. Each is acknowledged only once it is written.",
    ),
    Command(
        "audit",
        "audit.command:audit",
        "Move what is known of messages that have ended to Parquet files, and report on all that these hold.",
    ),
    Command(
        "serve",
        "serve:serve",
        "Serve the queues over HTTP until SIGINT or SIGTERM: EmoDB's QueueService, and the dashboard.",
    ),
    Command(
        "worker", "worker:worker", "Run listeners until SIGTERM or SIGINT, then let them finish what they have in hand."
    ),
    Command(
        "dump",
        "dump:dump",
        "Show where each task of a worker waits, down the whole chain of awaits, those that handle a message first.",
    ),
    Command(
        "demo-worker",
        "demo.worker:demo_worker",
        "Work for the demo: ``begin`` and ``end`` come on stdin; how it goes is told on stdout.",
        hidden=True,
    ),
    Commands(
        "dlq",
        "What a queue's policy gave up on: dead letters.",
        (
            Command(
                "list", "dead_letters:list_", "Show dead letters, and why each died. Fails with 1 when there is none."
            ),
            Command(
                "redrive",
                "dead_letters:redrive",
                "Put dead letters back into their queue, attempts at nought. Fails with 1 when there was none.",
            ),
            Command("purge", "dead_letters:purge", "Delete dead letters for good."),
        ),
    ),
    Commands(
        "ledgers",
        "What Spark streams hold of a queue.",
        (
            Command(
                "list",
                "ledgers:list_",
                "List whose stream holds how many messages, and which writers have batches that are not complete.",
            ),
            Command(
                "release",
                "ledgers:release",
                "Give back what a stream holds, for others to take. A stream that still runs fails at its next change.",
            ),
            Command(
                "discard",
                "ledgers:discard",
                "Remove the messages of a batch that is not complete and never will be. Nobody has seen any of them.",
            ),
        ),
    ),
    Commands(
        "pins",
        "What keeps clean-up from histories.",
        (
            Command(
                "list",
                "pins:list_",
                "Show what keeps clean-up from the history of which queue, and since when. "
                "Fails with 1 when nothing does.",
            ),
            Command(
                "remove",
                "pins:remove",
                "Let clean-up have histories again; gives up an audit that was cut off. "
                "Fails with 1 when there is no such pin.",
            ),
        ),
    ),
    Commands(
        "jobs",
        "Messages that are put again and again, by a cron expression.",
        (
            Command(
                "list",
                "jobs:list_",
                "Show the recurring jobs, and when each occurs next. Fails with 1 when there is none.",
            ),
            Command(
                "add",
                "jobs:add",
                "Add a job: put BODY to QUEUE whenever CRON says so. It occurs while a scheduler runs somewhere.",
            ),
            Command("pause", "jobs:pause", "Let a job occur no more until it is resumed."),
            Command("resume", "jobs:resume", "Let a paused job occur again, from now on."),
            Command("remove", "jobs:remove", "Remove a job. Fails with 1 when there is none of this name."),
            Command(
                "run",
                "jobs:run",
                "Schedule the jobs until a signal comes. Run it in several places: each occurrence is put once.",
            ),
        ),
    ),
    Commands(
        "bus",
        "Typed events, and who gets them.",
        (
            Command(
                "list", "events:buses", "Show the buses, and how many groups each has. Fails with 1 when there is none."
            ),
            Command(
                "groups",
                "events:groups",
                "Show what waits for the bus's own subscribers, and for each group. "
                "Fails with 1 when there is no such bus.",
            ),
        ),
    ),
    Commands(
        "notifications",
        "Events for a date.",
        (
            Command(
                "list",
                "events:notifications",
                "Show the notification queues, and how many entries each has. Fails with 1 when there is none.",
            ),
            Command("ready", "events:ready", "Count what can be handled at a date, and nobody holds."),
            Command(
                "schedule",
                "notify:schedule",
                "Schedule an event for a date, and print its id. The queue must have been created.",
            ),
            Command(
                "find",
                "notify:find",
                "Show what waits or is being handled, all or by its keys, the earliest first. "
                "Fails with 1 when there is none.",
            ),
            Command(
                "update",
                "notify:update",
                "Replace the event of one that waits. Fails with 1 when it is being handled, not there, or has other "
                "keys.",
            ),
            Command(
                "remove", "notify:remove", "Remove one that waits. Fails with 1 when it is being handled, or not there."
            ),
        ),
    ),
    Commands(
        "keys",
        "Who may use the queues over HTTP.",
        (
            Command(
                "create", "serve:create", "Make a key, and print it alone on the last line: nobody can tell it again."
            ),
            Command(
                "list",
                "serve:list_",
                "List the keys by name, with what each may do, not the keys: they are not stored. "
                "Fails with 1 when there is none.",
            ),
            Command(
                "revoke",
                "serve:revoke",
                "Revoke a key: within seconds no server knows it any more. "
                "Fails with 1 when there is none of this name.",
            ),
            Command(
                "rotate",
                "serve:rotate",
                "Sign message ids with a new secret. Ids of the secret before stay valid until the next rotation.",
            ),
        ),
    ),
)
