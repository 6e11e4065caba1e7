import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.queue.DistributedQueue;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Curator's DistributedQueue on command: "put PATH COUNT BYTES", "background PATH COUNT BYTES",
 * "consume PATH LOCKPATH|- THREADS COUNT", "serve PATH LOCKPATH MILLISECONDS", one a line on stdin; each is answered by
 * "done NANOSECONDS". What is served is consumed until the process ends, with this many milliseconds for each message.
 * Without lambdas: Janino compiles it where there is no JDK.
 */
public class CuratorQueue {
    static class Bytes implements QueueSerializer {
        public byte[] serialize(Object item) { return (byte[]) item; }
        public Object deserialize(byte[] bytes) { return bytes; }
    }

    static class Counter implements QueueConsumer {
        private final CountDownLatch left;
        Counter(CountDownLatch left) { this.left = left; }
        public void consumeMessage(Object message) { left.countDown(); }
        public void stateChanged(CuratorFramework client, ConnectionState state) { }
    }

    static class Slow implements QueueConsumer {
        private final long milliseconds;
        Slow(long milliseconds) { this.milliseconds = milliseconds; }
        public void consumeMessage(Object message) throws Exception { Thread.sleep(milliseconds); }
        public void stateChanged(CuratorFramework client, ConnectionState state) { }
    }

    public static void main(String[] arguments) throws Exception {
        int timeout = arguments.length > 1 ? Integer.parseInt(arguments[1]) : 60000;
        CuratorFramework client =
            CuratorFrameworkFactory.newClient(arguments[0], timeout, 15000, new ExponentialBackoffRetry(100, 3));
        client.start();
        client.blockUntilConnected();
        System.out.println("ready");
        System.out.flush();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            long taken = words[0].equals("serve")
                ? serve(client, words[1], words[2], Long.parseLong(words[3]))
                : words[0].equals("consume")
                ? consume(client, words[1], words[2], Integer.parseInt(words[3]), Integer.parseInt(words[4]))
                : put(client, words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]), words[0].equals("background"));
            System.out.println("done " + taken);
            System.out.flush();
        }
        client.close();
    }

    static long serve(CuratorFramework client, String path, String lock, long milliseconds) throws Exception {
        QueueBuilder.builder(client, new Slow(milliseconds), new Bytes(), path).lockPath(lock).buildQueue().start();
        return 0;
    }

    static long put(CuratorFramework client, String path, int count, int size, boolean background) throws Exception {
        QueueBuilder builder = QueueBuilder.builder(client, null, new Bytes(), path);
        DistributedQueue queue = builder.putInBackground(background).buildQueue();
        queue.start();
        byte[] body = new byte[size];
        long begun = System.nanoTime();
        for (int index = 0; index < count; index++) {
            queue.put(body);
        }
        if (!queue.flushPuts(5, TimeUnit.MINUTES)) {
            throw new IllegalStateException("puts are left");
        }
        long taken = System.nanoTime() - begun;
        queue.close();
        return taken;
    }

    static long consume(CuratorFramework client, String path, String lock, int threads, int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        QueueBuilder builder = QueueBuilder.builder(client, new Counter(left), new Bytes(), path);
        ExecutorService pool = threads > 1 ? Executors.newFixedThreadPool(threads) : null;
        if (!lock.equals("-")) {
            builder = builder.lockPath(lock);
        }
        if (pool != null) {
            builder = builder.executor((Executor) pool);
        }
        DistributedQueue queue = builder.buildQueue();
        long begun = System.nanoTime();
        queue.start();
        if (!left.await(10, TimeUnit.MINUTES)) {
            throw new IllegalStateException("messages are missing");
        }
        // The last message has been handled; that it and its lock are gone from the server as well must be seen.
        while (!((List) client.getChildren().forPath(path)).isEmpty()
                || (!lock.equals("-") && !((List) client.getChildren().forPath(lock)).isEmpty())) {
            Thread.sleep(1);
        }
        long taken = System.nanoTime() - begun;
        queue.close();
        if (pool != null) {
            pool.shutdown();
        }
        return taken;
    }
}
