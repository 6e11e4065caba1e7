import java.io.BufferedReader;
import java.io.Closeable;
import java.io.InputStreamReader;
import java.lang.management.LockInfo;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadInfo;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.queue.DistributedDelayQueue;
import org.apache.curator.framework.recipes.queue.DistributedIdQueue;
import org.apache.curator.framework.recipes.queue.DistributedPriorityQueue;
import org.apache.curator.framework.recipes.queue.DistributedQueue;
import org.apache.curator.framework.recipes.queue.ErrorMode;
import org.apache.curator.framework.recipes.queue.MultiItem;
import org.apache.curator.framework.recipes.queue.QueueAllocator;
import org.apache.curator.framework.recipes.queue.QueueBase;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueuePutListener;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.recipes.queue.QueueSharder;
import org.apache.curator.framework.recipes.queue.QueueSharderPolicies;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Curator's queues, controlled by commands: one per line on stdin, each answered by a line that begins with "=".
 * Bodies are hex. Messages of consumers are printed in between as "+ NAME HEX".
 * It has no lambdas, because Janino compiles it, so that no JDK is needed.
 */
public class CuratorPeer {
    static CuratorFramework client;
    static Map queues = new HashMap();
    static Map gates = new HashMap();
    static List pools = new ArrayList();
    static Map completed = new HashMap();

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static byte[] bytes(String hex) {
        byte[] body = new byte[hex.length() / 2];
        for (int index = 0; index < body.length; index++) {
            body[index] = (byte) Integer.parseInt(hex.substring(2 * index, 2 * index + 2), 16);
        }
        return body;
    }

    static String hex(byte[] body) {
        if (body == null) {
            return "none";
        }
        StringBuilder text = new StringBuilder();
        for (int index = 0; index < body.length; index++) {
            text.append(String.format("%02x", new Object[] {Integer.valueOf(body[index] & 0xff)}));
        }
        return text.toString();
    }

    static class Bytes implements QueueSerializer {
        public byte[] serialize(Object item) { return (byte[]) item; }
        public Object deserialize(byte[] bytes) { return bytes; }
    }

    static class Items implements MultiItem {
        private final Iterator bodies;
        Items(List bodies) { this.bodies = bodies.iterator(); }
        public Object nextItem() { return bodies.hasNext() ? bodies.next() : null; }
    }

    /** Counts the puts that have completed. */
    static class Completed implements QueuePutListener {
        private int count;
        public synchronized void putCompleted(Object item) { count++; notifyAll(); }
        public synchronized void putMultiCompleted(MultiItem items) { count++; notifyAll(); }
        synchronized int until(int wanted) throws InterruptedException {
            long end = System.currentTimeMillis() + 60000;
            while (count < wanted && System.currentTimeMillis() < end) {
                wait(1000);
            }
            return count;
        }
    }

    /**
     * Prints its messages. In mode hold it waits at its gate for a permit, in mode fail it raises the first time, in
     * mode failing every time, and in mode slow20 it takes 20 milliseconds for each message.
     */
    static class Shown implements QueueConsumer {
        private final String name;
        private final String mode;
        private final Semaphore gate;
        private boolean failed;
        Shown(String name, String mode, Semaphore gate) { this.name = name; this.mode = mode; this.gate = gate; }
        public void consumeMessage(Object message) throws Exception {
            say("+ " + name + " " + hex((byte[]) message));
            if (mode.startsWith("hold")) {
                gate.acquire();
            }
            if (mode.startsWith("slow")) {
                Thread.sleep(Long.parseLong(mode.substring(4)));
            }
            if (mode.equals("failing") || mode.endsWith("fail") && !failed) {
                failed = true;
                throw new IllegalStateException("as told");
            }
        }
        public void stateChanged(CuratorFramework client, ConnectionState state) { }
    }

    static QueueBase build(String kind, String path, String lock, int most, QueueConsumer consumer, int threads) {
        QueueBuilder builder = QueueBuilder.builder(client, consumer, new Bytes(), path);
        if (!lock.equals("-")) {
            builder = builder.lockPath(lock);
        }
        if (most > 0) {
            builder = builder.maxItems(most).putInBackground(false);
        }
        if (threads > 1) {
            ExecutorService pool = Executors.newFixedThreadPool(threads);
            pools.add(pool);
            builder = builder.executor((Executor) pool);
        }
        if (kind.equals("priority")) {
            return builder.buildPriorityQueue(1);
        }
        if (kind.equals("delay")) {
            return builder.buildDelayQueue();
        }
        if (kind.equals("id")) {
            return builder.buildIdQueue();
        }
        return builder.buildQueue();
    }

    public static void main(String[] arguments) throws Exception {
        int timeout = arguments.length > 1 ? Integer.parseInt(arguments[1]) : 10000;
        CuratorFrameworkFactory.Builder builder = CuratorFrameworkFactory.builder().connectString(arguments[0])
            .sessionTimeoutMs(timeout).connectionTimeoutMs(15000).retryPolicy(new ExponentialBackoffRetry(100, 3));
        client = arguments.length > 2 ? builder.enableCompression().build() : builder.build();
        client.start();
        client.blockUntilConnected();
        say("= ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                say("= " + answer(line.split(" ", -1)));
            } catch (Exception error) {
                say("= error " + error);
            }
        }
        client.close();
        System.exit(0);
    }

    static String answer(String[] words) throws Exception {
        String command = words[0];
        if (command.equals("open")) { // open NAME KIND PATH LOCK|- MOST
            QueueBase queue = build(words[2], words[3], words[4], Integer.parseInt(words[5]), null, 1);
            Completed listener = new Completed();
            queue.getPutListenerContainer().addListener(listener);
            completed.put(words[1], listener);
            queue.start();
            queues.put(words[1], queue);
            return "open";
        }
        if (command.equals("consume")) { // consume NAME KIND PATH LOCK|- show|hold|fail|hold-fail|failing|slowN THREADS [DELETE]
            Semaphore gate = new Semaphore(0);
            gates.put(words[1], gate);
            QueueConsumer consumer = new Shown(words[1], words[5], gate);
            QueueBase queue = build(words[2], words[3], words[4], 0, consumer, Integer.parseInt(words[6]));
            if (words.length > 7) {
                queue.setErrorMode(ErrorMode.valueOf(words[7]));
            }
            queue.start();
            queues.put(words[1], queue);
            return "consuming";
        }
        if (command.equals("go")) { // go NAME: lets a holding consumer finish one message
            ((Semaphore) gates.get(words[1])).release();
            return "going";
        }
        if (command.equals("close")) { // close NAME
            ((Closeable) queues.remove(words[1])).close();
            return "closed";
        }
        if (command.equals("reset")) { // closes everything
            for (Iterator all = gates.values().iterator(); all.hasNext();) {
                ((Semaphore) all.next()).release(1000000);
            }
            for (Iterator all = queues.values().iterator(); all.hasNext();) {
                ((Closeable) all.next()).close();
            }
            for (Iterator all = pools.iterator(); all.hasNext();) {
                ((ExecutorService) all.next()).shutdownNow();
            }
            queues.clear();
            gates.clear();
            completed.clear();
            pools.clear();
            return "reset";
        }
        if (command.equals("session")) { // the id and the password of the session
            return client.getZookeeperClient().getZooKeeper().getSessionId() + " "
                + hex(client.getZookeeperClient().getZooKeeper().getSessionPasswd());
        }
        if (command.equals("waiting")) { // waiting NAME: whether its consumer has read all items and waits for more
            int cache = System.identityHashCode(call(queues.get(words[1]), "getCache"));
            ThreadInfo[] threads = ManagementFactory.getThreadMXBean().dumpAllThreads(false, false);
            boolean waits = false;
            for (int index = 0; index < threads.length; index++) {
                LockInfo awaited = threads[index].getLockInfo();
                waits = waits || threads[index].getThreadState() == Thread.State.WAITING
                    && awaited != null && awaited.getIdentityHashCode() == cache;
            }
            return "" + waits;
        }
        if (command.equals("here")) { // answered after the lines of all messages so far
            return "here";
        }
        if (command.equals("flush")) { // flush NAME MILLISECONDS: whether all puts have completed by then
            QueueBase queue = (QueueBase) queues.get(words[1]);
            return "" + queue.flushPuts(Long.parseLong(words[2]), TimeUnit.MILLISECONDS);
        }
        if (command.equals("cached")) { // cached NAME: the number of children in the cache of its consumer
            return "" + ((List) cached(queues.get(words[1]), "children")).size();
        }
        if (command.equals("completed")) { // completed NAME COUNT: waits for this many completed puts; their number
            return "" + ((Completed) completed.get(words[1])).until(Integer.parseInt(words[2]));
        }
        if (command.equals("put")) { // put NAME HEX [priority|epoch|id]; several bodies, separated by commas, are one item
            QueueBase queue = (QueueBase) queues.get(words[1]);
            String done = put(queue, words);
            return queue.flushPuts(60, TimeUnit.SECONDS) ? done : "error: it is not stored"; // a put returns before the item is stored
        }
        if (command.equals("remove")) { // remove NAME ID
            return "" + ((DistributedIdQueue) queues.get(words[1])).remove(words[2]);
        }
        // shard NAME PATH LEADERPATH LOCKS THRESHOLD MOST: each shard's lock path is LOCKS/its name
        if (command.equals("shard")) {
            final String locks = words[4];
            QueueAllocator allocator = new QueueAllocator() {
                public QueueBase allocateQueue(CuratorFramework client, String path) {
                    return build("queue", path, locks + path.substring(path.lastIndexOf('/')), 0, null, 1);
                }
            };
            QueueSharderPolicies policies = QueueSharderPolicies.builder()
                .newQueueThreshold(Integer.parseInt(words[5])).maxQueues(Integer.parseInt(words[6]))
                .thresholdCheckMs(50).build();
            QueueSharder sharder = new QueueSharder(client, allocator, words[2], words[3], policies);
            sharder.start();
            queues.put(words[1], sharder);
            return "" + sharder.getShardQty();
        }
        if (command.equals("shards")) { // shards NAME: the number of its shards
            return "" + ((QueueSharder) queues.get(words[1])).getShardQty();
        }
        if (command.equals("shardput")) { // shardput NAME HEX
            DistributedQueue queue = (DistributedQueue) ((QueueSharder) queues.get(words[1])).getQueue();
            queue.put(bytes(words[2]));
            return queue.flushPuts(60, TimeUnit.SECONDS) ? "put" : "error: it is not stored";
        }
        SimpleDistributedQueue simple = new SimpleDistributedQueue(client, words[1]);
        if (command.equals("offer")) { // offer PATH HEX
            return "" + simple.offer(words.length > 2 ? bytes(words[2]) : new byte[0]);
        }
        if (command.equals("poll")) { // poll PATH SECONDS
            return hex(simple.poll(Integer.parseInt(words[2]), TimeUnit.SECONDS));
        }
        if (command.equals("peek")) { // peek PATH
            return hex(simple.peek());
        }
        try {
            if (command.equals("element")) { // element PATH
                return hex(simple.element());
            }
            if (command.equals("removefirst")) { // removefirst PATH
                return hex(simple.remove());
            }
        } catch (NoSuchElementException empty) {
            return "empty";
        }
        if (command.equals("take")) { // take PATH
            return hex(simple.take());
        }
        throw new IllegalArgumentException(command);
    }

    static Object cached(Object queue, String name) throws Exception { // Curator's own tests read it, too
        Object data = call(call(queue, "getCache"), "getData");
        Field field = data.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(data);
    }

    static Object call(Object on, String name) throws Exception {
        Method method = on.getClass().getDeclaredMethod(name, new Class[0]);
        method.setAccessible(true);
        return method.invoke(on, new Object[0]);
    }

    static String put(Object queue, String[] words) throws Exception {
        String[] parts = words[2].split(",", -1);
        List bodies = new ArrayList();
        for (int index = 0; index < parts.length; index++) {
            bodies.add(bytes(parts[index]));
        }
        boolean many = parts.length > 1;
        if (queue instanceof DistributedPriorityQueue) {
            DistributedPriorityQueue priority = (DistributedPriorityQueue) queue;
            int number = Integer.parseInt(words[3]);
            if (many) { priority.putMulti(new Items(bodies), number); } else { priority.put(bodies.get(0), number); }
            return "put";
        }
        if (queue instanceof DistributedDelayQueue) {
            ((DistributedDelayQueue) queue).put(bodies.get(0), Long.parseLong(words[3]));
            return "put";
        }
        if (queue instanceof DistributedIdQueue) {
            ((DistributedIdQueue) queue).put(bodies.get(0), words[3]);
            return "put";
        }
        DistributedQueue plain = (DistributedQueue) queue;
        if (words.length > 3) { // a timed put of a bounded queue, milliseconds
            Object before = cached(plain, "version");
            boolean fitted = plain.put(bodies.get(0), Integer.parseInt(words[3]), TimeUnit.MILLISECONDS);
            while (fitted && cached(plain, "version").equals(before)) {
                Thread.sleep(1); // otherwise the number of further puts with the same list depends on the speed of the threads
            }
            return "" + fitted;
        }
        if (many) { plain.putMulti(new Items(bodies)); } else { plain.put(bodies.get(0)); }
        return "put";
    }
}
