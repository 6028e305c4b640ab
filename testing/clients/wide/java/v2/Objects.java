import java.io.RandomAccessFile;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.core.util.VersionInfo;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.CompletedPart;
import software.amazon.awssdk.services.s3.model.GetObjectRequest;

/** One operation of version 2 of the AWS SDK for Java. */
public final class Objects {
    private static final String BUCKET = System.getenv("WIDE_BUCKET");
    private static final int PART = 5 << 20;

    private static S3Client client() {
        var keys = AwsBasicCredentials.create(
                System.getenv("AWS_ACCESS_KEY_ID"), System.getenv("AWS_SECRET_ACCESS_KEY"));
        return S3Client.builder()
                .endpointOverride(URI.create(System.getenv("WIDE_URL")))
                .region(Region.of(System.getenv("AWS_REGION")))
                .credentialsProvider(StaticCredentialsProvider.create(keys))
                .forcePathStyle(true)
                .httpClientBuilder(UrlConnectionHttpClient.builder())
                .build();
    }

    private static void upload(S3Client s3, Path file, String key) throws Exception {
        String id = s3.createMultipartUpload(r -> r.bucket(BUCKET).key(key)).uploadId();
        List<CompletedPart> parts = new ArrayList<>();
        try (var source = new RandomAccessFile(file.toFile(), "r")) {
            for (long offset = 0; offset < source.length(); offset += PART) {
                byte[] bytes = new byte[(int) Math.min(PART, source.length() - offset)];
                source.readFully(bytes);
                int number = parts.size() + 1;
                var sent = s3.uploadPart(
                        r -> r.bucket(BUCKET).key(key).uploadId(id).partNumber(number), RequestBody.fromBytes(bytes));
                parts.add(CompletedPart.builder()
                        .partNumber(number)
                        .eTag(sent.eTag())
                        .checksumCRC32(sent.checksumCRC32())
                        .build());
            }
        }
        s3.completeMultipartUpload(
                r -> r.bucket(BUCKET).key(key).uploadId(id).multipartUpload(m -> m.parts(parts)));
    }

    private static void get(S3Client s3, String key, String range, Path file) throws Exception {
        var request = GetObjectRequest.builder().bucket(BUCKET).key(key).range(range).build();
        Files.write(file, s3.getObjectAsBytes(request).asByteArray());
    }

    public static void main(String[] words) throws Exception {
        if (words[0].equals("version")) {
            System.out.println(VersionInfo.SDK_VERSION);
            return;
        }
        try (S3Client s3 = client()) {
            switch (words[0]) {
                case "put" -> s3.putObject(r -> r.bucket(BUCKET).key(words[2]), Paths.get(words[1]));
                case "upload" -> upload(s3, Paths.get(words[1]), words[2]);
                case "get" -> get(s3, words[1], null, Paths.get(words[2]));
                case "range" -> {
                    long first = Long.parseLong(words[2]);
                    String range = "bytes=" + first + "-" + (first + Long.parseLong(words[3]) - 1);
                    get(s3, words[1], range, Paths.get(words[4]));
                }
                case "list" -> s3.listObjectsV2Paginator(r -> r.bucket(BUCKET).prefix(words[1]))
                        .contents().forEach(object -> System.out.println(object.key()));
                case "copy" -> s3.copyObject(r -> r.sourceBucket(BUCKET).sourceKey(words[1])
                        .destinationBucket(BUCKET).destinationKey(words[2]));
                case "delete" -> s3.deleteObject(r -> r.bucket(BUCKET).key(words[1]));
                default -> throw new IllegalArgumentException(words[0]);
            }
        }
    }
}
