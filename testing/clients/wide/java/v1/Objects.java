import com.amazonaws.auth.AWSStaticCredentialsProvider;
import com.amazonaws.auth.BasicAWSCredentials;
import com.amazonaws.client.builder.AwsClientBuilder.EndpointConfiguration;
import com.amazonaws.services.s3.AmazonS3;
import com.amazonaws.services.s3.AmazonS3ClientBuilder;
import com.amazonaws.services.s3.model.GetObjectRequest;
import com.amazonaws.services.s3.model.ListObjectsV2Request;
import com.amazonaws.services.s3.transfer.TransferManagerBuilder;
import com.amazonaws.util.VersionInfoUtils;
import java.io.File;

/** One operation of version 1 of the AWS SDK for Java. */
public final class Objects {
    private static final String BUCKET = System.getenv("WIDE_BUCKET");
    private static final long PART = 5 << 20;

    private static AmazonS3 client() {
        var keys = new BasicAWSCredentials(
                System.getenv("AWS_ACCESS_KEY_ID"), System.getenv("AWS_SECRET_ACCESS_KEY"));
        return AmazonS3ClientBuilder.standard()
                .withEndpointConfiguration(
                        new EndpointConfiguration(System.getenv("WIDE_URL"), System.getenv("AWS_REGION")))
                .withCredentials(new AWSStaticCredentialsProvider(keys))
                .withPathStyleAccessEnabled(true)
                .build();
    }

    private static void upload(AmazonS3 s3, File file, String key) throws Exception {
        var transfers = TransferManagerBuilder.standard()
                .withS3Client(s3)
                .withMinimumUploadPartSize(PART)
                .withMultipartUploadThreshold(PART)
                .build();
        transfers.upload(BUCKET, key, file).waitForCompletion();
        transfers.shutdownNow(false);
    }

    private static void list(AmazonS3 s3, String prefix) {
        var request = new ListObjectsV2Request().withBucketName(BUCKET).withPrefix(prefix);
        boolean more = true;
        while (more) {
            var page = s3.listObjectsV2(request);
            page.getObjectSummaries().forEach(object -> System.out.println(object.getKey()));
            request.setContinuationToken(page.getNextContinuationToken());
            more = page.isTruncated();
        }
    }

    public static void main(String[] words) throws Exception {
        if (words[0].equals("version")) {
            System.out.println(VersionInfoUtils.getVersion());
            return;
        }
        AmazonS3 s3 = client();
        switch (words[0]) {
            case "put" -> s3.putObject(BUCKET, words[2], new File(words[1]));
            case "upload" -> upload(s3, new File(words[1]), words[2]);
            case "get" -> s3.getObject(new GetObjectRequest(BUCKET, words[1]), new File(words[2]));
            case "range" -> {
                long first = Long.parseLong(words[2]);
                var request = new GetObjectRequest(BUCKET, words[1])
                        .withRange(first, first + Long.parseLong(words[3]) - 1);
                s3.getObject(request, new File(words[4]));
            }
            case "list" -> list(s3, words[1]);
            case "copy" -> s3.copyObject(BUCKET, words[1], BUCKET, words[2]);
            case "delete" -> s3.deleteObject(BUCKET, words[1]);
            default -> throw new IllegalArgumentException(words[0]);
        }
        s3.shutdown();
    }
}
