import com.google.cloud.NoCredentials;
import com.google.cloud.WriteChannel;
import com.google.cloud.storage.BlobInfo;
import com.google.cloud.storage.Storage;
import com.google.cloud.storage.StorageOptions;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Uploads objects of the sizes in a line of its input, and prints a line of figures: see `Figures` of the harness. */
public final class UploadPeer {
  private static final int CHUNK_BYTES = 16 << 20;
  private static final int WRITE_BYTES = 64 << 10;
  private static final byte[] CONTENT = new byte[64 << 20];

  public static void main(String[] args) throws Exception {
    String endpoint = args[0];
    int atOnce = Integer.parseInt(args[1]);
    Storage storage =
        StorageOptions.newBuilder()
            .setHost(endpoint)
            .setProjectId("bench")
            .setCredentials(NoCredentials.getInstance())
            .build()
            .getService();
    new java.util.Random(1).nextBytes(CONTENT);
    ExecutorService threads = Executors.newFixedThreadPool(atOnce);
    System.out.println("ready");
    BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
    int round = 0;
    for (String line; (line = orders.readLine()) != null; round++) {
      System.out.println(measure(storage, threads, line.trim().split(" "), round));
    }
    threads.shutdown();
  }

  private static String measure(Storage storage, ExecutorService threads, String[] sizes, int round)
      throws Exception {
    long begun = System.nanoTime();
    long cpu = cpuNanos();
    long allocated = allocatedBytes();
    List<Future<?>> uploads = new ArrayList<>();
    for (int at = 0; at < sizes.length; at++) {
      String name = "java-" + round + "-" + at;
      int size = Integer.parseInt(sizes[at]);
      uploads.add(threads.submit(() -> upload(storage, name, size)));
    }
    for (Future<?> upload : uploads) {
      upload.get();
    }
    double seconds = (System.nanoTime() - begun) / 1e9;
    return seconds + " " + (cpuNanos() - cpu) / 1e9 + " " + (allocatedBytes() - allocated);
  }

  private static Void upload(Storage storage, String name, int size) throws Exception {
    BlobInfo blob = BlobInfo.newBuilder("bench", name).build();
    try (WriteChannel channel = storage.writer(blob)) {
      channel.setChunkSize(CHUNK_BYTES);
      for (int at = 0; at < size; at += WRITE_BYTES) {
        // An object longer than the content has it several times.
        int from = at % CONTENT.length;
        ByteBuffer piece = ByteBuffer.wrap(CONTENT, from, Math.min(WRITE_BYTES, size - at));
        while (piece.hasRemaining()) {
          channel.write(piece);
        }
      }
    }
    return null;
  }

  private static long cpuNanos() {
    return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
        .getProcessCpuTime();
  }

  private static long allocatedBytes() {
    com.sun.management.ThreadMXBean threads =
        (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();
    long sum = 0;
    for (long bytes : threads.getThreadAllocatedBytes(threads.getAllThreadIds())) {
      sum += Math.max(bytes, 0);
    }
    return sum;
  }
}
