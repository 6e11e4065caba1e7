"""Every command of the command line: its name, its function, its panel and its summary in listings."""

from __future__ import annotations

from typing import Final

from aiozkqueue.cli.lazy import Command, Commands

WORK: Final = "Work"
QUEUES: Final = "Queues"
MESSAGES: Final = "Messages"
JOBS: Final = "Jobs and events"
HTTP: Final = "HTTP"
SPARK: Final = "Spark and files"
SERVERS: Final = "Servers"

COMMANDS: Final = (
    Command("put", "put:put", "Put messages into a queue and print their ids.", WORK),
    Command("consume", "consume:consume", "Take messages and print or process each in its own transaction.", WORK),
    Command(
        "worker",
        "worker:worker",
        "Run an application or listeners until SIGTERM or SIGINT; then let their handlers finish.",
        WORK,
    ),
    Command("dump", "dump:dump", "Show where each task of a worker waits.", WORK),
    Command("queues", "queues:queues", "List the names of all queues.", QUEUES),
    Command("stats", "queues:stats", "Show the figures of queues: messages by state, dead letters, consumers.", QUEUES),
    Command("top", "top:top", "Show all queues live; q or Ctrl-C ends it.", QUEUES),
    Command(
        "configure", "configure:command", "Show the configuration of a queue, after changing the given options.", QUEUES
    ),
    Command("pause", "pause:pause", "Stop delivering messages of these queues until they are resumed.", QUEUES),
    Command("resume", "pause:resume", "Deliver messages of these queues again.", QUEUES),
    Command("unbundle", "unbundle:command", "Turn bundles off, and store each message in a separate znode.", QUEUES),
    Command("purge", "queues:purge", "Delete all messages that are not in flight; keep dead letters.", QUEUES),
    Command("delete", "delete:delete", "Delete a queue with all its data.", QUEUES),
    Command("move", "moves:move", "Move the messages of a queue to another queue.", QUEUES),
    Command("moves", "moves:moves", "List the moves of the last week and their progress.", QUEUES),
    Command("consumers", "records:consumers", "Show the consumers of a queue and the messages they hold.", QUEUES),
    Command("clean", "records:clean", "Clean up now instead of waiting for the sessions to do it.", QUEUES),
    Command(
        "reap",
        "records:reap",
        "Let all nodes take messages of a sticky queue that their own node has not taken in time.",
        QUEUES,
    ),
    Command("peek", "peek:peek", "Show the oldest messages without taking them.", MESSAGES),
    Command("why", "why:why", "Explain what happened to a message and why it is where it is.", MESSAGES),
    Command("state", "records:state", "Show the state of a message.", MESSAGES),
    Command("history", "records:history", "Show ended messages, the newest first.", MESSAGES),
    Command(
        "report", "report.command:report", "Show times, attempts and dead letters from a queue's history.", MESSAGES
    ),
    Command("cancel", "alter:cancel", "Remove a message, by default only if it is not in flight.", MESSAGES),
    Command("update", "alter:update", "Replace the payload of a message that is not in flight.", MESSAGES),
    Commands(
        "dlq",
        "Inspect, redrive and delete dead letters.",
        (
            Command("list", "dead_letters:list_", "List dead letters and the reason for each."),
            Command(
                "redrive",
                "dead_letters:redrive",
                "Put dead letters back into their queue, starting again at attempt 1.",
            ),
            Command("purge", "dead_letters:purge", "Delete dead letters permanently."),
        ),
        MESSAGES,
    ),
    Commands(
        "jobs",
        "Manage recurring jobs by cron expressions.",
        (
            Command(
                "list",
                "jobs:list_",
                "List recurring jobs with their last and next occurrences; mark jobs that no scheduler seems to serve.",
            ),
            Command(
                "add", "jobs:add", "Add a job that puts BODY to QUEUE at the times of CRON while a scheduler runs."
            ),
            Command("pause", "jobs:pause", "Pause a job until it is resumed."),
            Command("resume", "jobs:resume", "Resume a paused job."),
            Command("remove", "jobs:remove", "Remove a job."),
            Command("run", "jobs:run", "Run a scheduler until a signal arrives; several may run at the same time."),
        ),
        JOBS,
    ),
    Commands(
        "bus",
        "Inspect buses and their groups.",
        (
            Command("list", "bus:list_", "List the buses and the number of their groups."),
            Command("groups", "bus:groups", "List the events that wait for each group of a bus."),
        ),
        JOBS,
    ),
    Commands(
        "notifications",
        "Manage events that are due at a date.",
        (
            Command("list", "notifications:list_", "List the notification queues and the number of their entries."),
            Command("ready", "notifications:ready", "Count the entries that are due at a date and not in flight."),
            Command("schedule", "notifications:schedule", "Schedule an event for a date and print its id."),
            Command(
                "find",
                "notifications:find",
                "List the entries of a queue, all or by their search keys, the earliest first.",
            ),
            Command("update", "notifications:update", "Replace the event of an entry that is waiting."),
            Command("remove", "notifications:remove", "Remove an entry that is waiting."),
        ),
        JOBS,
    ),
    Command("serve", "serve:serve", "Serve the queues and the dashboard over HTTP until SIGINT or SIGTERM.", HTTP),
    Commands(
        "keys",
        "Manage API keys for HTTP.",
        (
            Command("create", "keys:create", "Create an API key and print it on the last line; it is shown only once."),
            Command("list", "keys:list_", "List the API keys by name, with their permissions."),
            Command("revoke", "keys:revoke", "Revoke an API key on all servers within seconds."),
            Command(
                "rotate",
                "keys:rotate",
                "Sign message ids with a new secret; the previous secret stays valid until the next rotation.",
            ),
        ),
        HTTP,
    ),
    Command(
        "load", "transfer:load", "Put each row of Parquet, CSV (with a header) or JSON-lines files into a queue.", SPARK
    ),
    Command("unload", "transfer:unload", "Move the messages of a queue to Parquet files.", SPARK),
    Command("audit", "audit.command:audit", "Move the histories of queues to Parquet files and report on them.", SPARK),
    Commands(
        "ledgers",
        "Inspect and release messages that Spark streams hold.",
        (
            Command(
                "list",
                "ledgers:list_",
                "List the messages that each stream holds, and the incomplete batches of writers.",
            ),
            Command(
                "release", "ledgers:release", "Release the messages that a stream holds, so that others can take them."
            ),
            Command(
                "discard", "ledgers:discard", "Delete the messages of an incomplete batch, which no consumer has seen."
            ),
        ),
        SPARK,
    ),
    Commands(
        "pins",
        "Inspect the pins that protect histories from clean-up.",
        (
            Command("list", "pins:list_", "List the pins that protect histories from clean-up, and their age."),
            Command("remove", "pins:remove", "Remove a pin, which abandons an interrupted audit."),
        ),
        SPARK,
    ),
    Command(
        "demo",
        "demo.command:demo",
        "Process a text through two queues, kill a worker, and account for every line.",
        SERVERS,
    ),
    Command("zookeeper", "zookeeper:zookeeper", "Run a real ZooKeeper server in the foreground.", SERVERS),
    Command("doctor", "doctor:doctor", "Examine the servers and the queues for problems.", SERVERS),
    Command(
        "demo-worker",
        "demo.worker:demo_worker",
        "Process lines for the demo: ``begin`` and ``end`` arrive on stdin, progress goes to stdout.",
        hidden=True,
    ),
)
