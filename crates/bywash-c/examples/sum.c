/* Sums the bytes of an object where they are, in the server's memory: cc sum.c -lbywash_c && ./a.out SOCKET BUCKET KEY */

#include <inttypes.h>
#include <stdio.h>

#include "bywash.h"

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, bywash_last_error());
    return 1;
}

static bool count(void *context, const char *key, const BywashMetadata *found) {
    (void)key;
    (void)found;
    ++*(size_t *)context;
    return true;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "sum SOCKET BUCKET KEY\n");
        return 2;
    }
    BywashClient *client;
    if (bywash_open(argv[1], 60000, &client) != BYWASH_CODE_OK) {
        return failed("open");
    }
    BywashObject *object;
    if (bywash_get_ranges(client, argv[2], argv[3], NULL, 0, &object) != BYWASH_CODE_OK) {
        bywash_close(client);
        return failed("get");
    }
    uint64_t sum = 0;
    BywashSegment segments[64];
    size_t len = bywash_segments(object, 0, segments, 64);
    for (size_t segment = 0; segment < len && segment < 64; ++segment) {
        for (size_t at = 0; at < segments[segment].len; ++at) {
            sum += segments[segment].data[at];
        }
    }
    bywash_release(object);
    size_t keys = 0;
    BywashCode listed = bywash_list(client, argv[2], "", count, &keys);
    bywash_close(client);
    if (listed != BYWASH_CODE_OK || len > 64) {
        return failed("list");
    }
    printf("%" PRIu64 " %zu\n", sum, keys);
    return 0;
}
