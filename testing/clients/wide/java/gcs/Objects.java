import com.google.cloud.ReadChannel;
import com.google.cloud.WriteChannel;
import com.google.cloud.storage.BlobId;
import com.google.cloud.storage.BlobInfo;
import com.google.cloud.storage.Storage;
import com.google.cloud.storage.Storage.BlobListOption;
import com.google.cloud.storage.Storage.BlobTargetOption;
import com.google.cloud.storage.StorageException;
import com.google.cloud.storage.StorageOptions;
import com.google.cloud.storage.transfermanager.ParallelDownloadConfig;
import com.google.cloud.storage.transfermanager.ParallelUploadConfig;
import com.google.cloud.storage.transfermanager.TransferManager;
import com.google.cloud.storage.transfermanager.TransferManagerConfig;
import com.google.cloud.storage.transfermanager.TransferStatus;
import java.io.FileInputStream;
import java.net.HttpURLConnection;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.util.List;

/** One operation of Google's storage library for Java, with the credentials of its environment. */
public final class Objects {
    private static final String BUCKET = System.getenv("WIDE_BUCKET");
    private static final int CHUNK = 4 << 20;

    private static StorageOptions options() {
        return StorageOptions.newBuilder().setHost(System.getenv("WIDE_GCS")).setProjectId("p").build();
    }

    private static BlobInfo named(String key) {
        return BlobInfo.newBuilder(BlobId.of(BUCKET, key)).build();
    }

    /** Writes by a resumable session: the channel of the library is BlobWriteChannelV2. */
    private static void upload(Storage storage, Path file, String key) throws Exception {
        try (WriteChannel channel = storage.writer(named(key));
                FileInputStream source = new FileInputStream(file.toFile())) {
            channel.setChunkSize(CHUNK);
            byte[] bytes = new byte[1 << 20];
            for (int count = source.read(bytes); count >= 0; count = source.read(bytes)) {
                ByteBuffer piece = ByteBuffer.wrap(bytes, 0, count);
                while (piece.hasRemaining()) {
                    channel.write(piece);
                }
            }
        }
    }

    private static void range(Storage storage, String key, long first, long count, Path file) throws Exception {
        try (ReadChannel channel = storage.reader(BlobId.of(BUCKET, key))) {
            channel.seek(first);
            channel.limit(first + count);
            Files.copy(Channels.newInputStream(channel), file, StandardCopyOption.REPLACE_EXISTING);
        }
    }

    private static TransferManager manager() {
        return TransferManagerConfig.newBuilder()
                .setStorageOptions(options())
                .setMaxWorkers(4)
                .setPerWorkerBufferSize(CHUNK)
                .setAllowParallelCompositeUpload(true)
                .setAllowDivideAndConquerDownload(true)
                .build()
                .getService();
    }

    /** Uploads with the transfer manager: large files in parts that are composed. */
    private static void parts(Path file, String key) throws Exception {
        var config = ParallelUploadConfig.newBuilder()
                .setBucketName(BUCKET)
                .setUploadBlobInfoFactory((bucket, name) -> named(key))
                .build();
        try (TransferManager manager = manager()) {
            var result = manager.uploadFiles(List.of(file), config).getUploadResults().get(0);
            if (result.getStatus() != TransferStatus.SUCCESS) {
                throw new IllegalStateException(result.getStatus().toString(), result.getException());
            }
        }
    }

    /** Downloads with the transfer manager: large objects in ranges at the same time. */
    private static void pieces(Storage storage, String key, Path file) throws Exception {
        Path folder = Files.createTempDirectory("pieces");
        var config = ParallelDownloadConfig.newBuilder().setBucketName(BUCKET).setDownloadDirectory(folder).build();
        try (TransferManager manager = manager()) {
            var found = storage.get(BlobId.of(BUCKET, key));
            var result = manager.downloadBlobs(List.of(found), config).getDownloadResults().get(0);
            if (result.getStatus() != TransferStatus.SUCCESS) {
                throw new IllegalStateException(result.getStatus().toString(), result.getException());
            }
            Files.move(result.getOutputDestination(), file, StandardCopyOption.REPLACE_EXISTING);
        }
    }

    /** Writes if the object has the generation, 0 if there is none; prints whether it was written. */
    private static void write(Storage storage, Path file, String key, long generation) throws Exception {
        try {
            storage.create(named(key), Files.readAllBytes(file), BlobTargetOption.generationMatch(generation));
            System.out.println("written");
        } catch (StorageException failure) {
            if (failure.getCode() != HttpURLConnection.HTTP_PRECON_FAILED) {
                throw failure;
            }
            System.out.println("refused");
        }
    }

    public static void main(String[] words) throws Exception {
        if (words[0].equals("version")) {
            System.out.println(Storage.class.getPackage().getImplementationVersion());
            return;
        }
        try (Storage storage = options().getService()) {
            switch (words[0]) {
                case "put" -> storage.create(named(words[2]), Files.readAllBytes(Paths.get(words[1])));
                case "upload" -> upload(storage, Paths.get(words[1]), words[2]);
                case "parts" -> parts(Paths.get(words[1]), words[2]);
                case "get" -> storage.downloadTo(BlobId.of(BUCKET, words[1]), Paths.get(words[2]));
                case "pieces" -> pieces(storage, words[1], Paths.get(words[2]));
                case "range" -> range(
                        storage, words[1], Long.parseLong(words[2]), Long.parseLong(words[3]), Paths.get(words[4]));
                case "list" -> storage.list(BUCKET, BlobListOption.prefix(words[1]))
                        .iterateAll()
                        .forEach(blob -> System.out.println(blob.getName()));
                case "copy" -> storage.copy(Storage.CopyRequest.of(BlobId.of(BUCKET, words[1]), BlobId.of(BUCKET, words[2])))
                        .getResult();
                case "delete" -> {
                    if (!storage.delete(BlobId.of(BUCKET, words[1]))) {
                        throw new IllegalStateException("not there: " + words[1]);
                    }
                }
                case "generation" -> System.out.println(storage.get(BlobId.of(BUCKET, words[1])).getGeneration());
                case "write" -> write(storage, Paths.get(words[1]), words[2], Long.parseLong(words[3]));
                default -> throw new IllegalArgumentException(words[0]);
            }
        }
    }
}
