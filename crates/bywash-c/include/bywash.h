/* Bywash: buckets of this user's running server, read in its memory without a copy.
 *
 * Made by cbindgen from crates/bywash-c/src/lib.rs: change it there.
 *
 * Every call blocks up to the client's deadline. A client and its objects may be used by any number of threads at once, but each is
 * freed once, when no call uses it. Texts are UTF-8 and end with a zero. */

#ifndef BYWASH_H
#define BYWASH_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// Result of a call, by what the caller can do.
typedef enum BywashCode {
  // The call succeeded.
  BYWASH_CODE_OK = 0,
  // There is no such object.
  BYWASH_CODE_NOT_FOUND = 1,
  // There is no such bucket.
  BYWASH_CODE_NO_SUCH_BUCKET = 2,
  // A condition does not hold.
  BYWASH_CODE_PRECONDITION = 3,
  // The object has the ETag that the caller knows.
  BYWASH_CODE_NOT_MODIFIED = 4,
  // There is an object already.
  BYWASH_CODE_ALREADY_EXISTS = 5,
  // An argument is wrong.
  BYWASH_CODE_INVALID_ARGUMENT = 6,
  // The range is beyond the object's end.
  BYWASH_CODE_INVALID_RANGE = 7,
  // The store or the server refuses the request.
  BYWASH_CODE_PERMISSION_DENIED = 8,
  // The store has no such operation.
  BYWASH_CODE_UNSUPPORTED = 9,
  // No memory at the server in time: try again later.
  BYWASH_CODE_SLOW_DOWN = 10,
  // The deadline passed.
  BYWASH_CODE_DEADLINE = 11,
  // The store failed: try again later.
  BYWASH_CODE_UNAVAILABLE = 12,
  // The object changed while it was read: try again.
  BYWASH_CODE_VERSION_CHANGED = 13,
  // The bytes do not have the digest that was stated for them.
  BYWASH_CODE_DAMAGED = 14,
  // The upload cannot be continued.
  BYWASH_CODE_UPLOAD_LOST = 15,
  // A limit of the server is exceeded.
  BYWASH_CODE_LIMIT = 16,
  // Client and server are of different releases.
  BYWASH_CODE_PROTOCOL = 17,
  // There is no server, or the connection to it broke.
  BYWASH_CODE_CONNECTION = 18,
  // A file or socket of this machine failed.
  BYWASH_CODE_IO = 19,
  // A fault of this library.
  BYWASH_CODE_INTERNAL = 20,
} BywashCode;

// A client of this user's server.
typedef struct BywashClient BywashClient;

// Ranges of one version of an object. Their bytes stay as they are until it is released.
typedef struct BywashObject BywashObject;

// Metadata of an object.
typedef struct BywashMetadata {
  // Bytes.
  uint64_t size;
  // Time of the last change, in nanoseconds since 1970.
  int64_t modified_ns;
  // ETag without quotes, cut at 127 bytes; empty if there is none.
  char etag[128];
} BywashMetadata;

// A range of an object: from `start` to before `end`, cut at the object's end.
typedef struct BywashRange {
  // The first byte.
  uint64_t start;
  // The byte after the last.
  uint64_t end;
} BywashRange;

// Bytes in memory.
typedef struct BywashSegment {
  // The first byte. Read only.
  const uint8_t *data;
  // Number of bytes.
  size_t len;
} BywashSegment;

// Called for each object of a listing with its key and metadata. Returns false to end the listing.
typedef bool (*BywashEntry)(void *context, const char *key, const struct BywashMetadata *found);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Text of this thread's last error: object, operation and next step. Valid until the thread's next call.
const char *bywash_last_error(void);

// Connects to the server that listens at `socket`; NULL: at $BYWASH_LOCAL, or at this user's well-known socket. Calls of the client end
// after `deadline_ms` milliseconds; 0: after a minute.
//
// # Safety
// `socket` is NULL or a string; `out` can be written to.
enum BywashCode bywash_open(const char *socket,
                            uint32_t deadline_ms,
                            struct BywashClient **out);

// Frees a client. Objects that it has read stay valid. NULL is allowed.
//
// # Safety
// `client` comes from [`bywash_open`], and no call uses it.
void bywash_close(struct BywashClient *client);

// Has the server mount the origin at `address`, as s3://data. Writes the bucket's name to `name`, which has room for `capacity` bytes.
//
// # Safety
// Pointers are valid; `name` has `capacity` bytes.
enum BywashCode bywash_attach(const struct BywashClient *client,
                              const char *address,
                              char *name,
                              size_t capacity);

// Reads an object's metadata.
//
// # Safety
// Pointers are valid.
enum BywashCode bywash_head(const struct BywashClient *client,
                            const char *bucket,
                            const char *key,
                            struct BywashMetadata *out);

// Reads `count` ranges of one version of an object; without any, all of it.
//
// # Safety
// Pointers are valid; `ranges` has `count` elements.
enum BywashCode bywash_get_ranges(const struct BywashClient *client,
                                  const char *bucket,
                                  const char *key,
                                  const struct BywashRange *ranges,
                                  size_t count,
                                  struct BywashObject **out);

// Returns the number of segments of range `range`, and writes the first `capacity` of them to `out`. They are the range's bytes in
// order, in the server's memory or received, and valid until the object is released.
//
// # Safety
// `object` comes from [`bywash_get_ranges`]; `out` has `capacity` elements, or is NULL with 0.
size_t bywash_segments(const struct BywashObject *object,
                       size_t range,
                       struct BywashSegment *out,
                       size_t capacity);

// ETag of the version that was read; empty if the origin has none. Valid until the object is released.
//
// # Safety
// `object` comes from [`bywash_get_ranges`].
const char *bywash_etag(const struct BywashObject *object);

// Frees an object, and ends its lease at the server. NULL is allowed.
//
// # Safety
// `object` comes from [`bywash_get_ranges`], and nothing uses its segments any more.
void bywash_release(struct BywashObject *object);

// Lists the objects whose keys begin with `prefix`, in the order of keys, page by page.
//
// # Safety
// Pointers are valid, and `entry` can be called with `context`.
enum BywashCode bywash_list(const struct BywashClient *client,
                            const char *bucket,
                            const char *prefix,
                            BywashEntry entry,
                            void *context);

// Writes an object of `len` bytes. With `if_match`, an ETag, only over that version; with `create_only`, only if there is none.
//
// # Safety
// Pointers are valid; `data` has `len` bytes; `if_match` is NULL or a string.
enum BywashCode bywash_put(const struct BywashClient *client,
                           const char *bucket,
                           const char *key,
                           const uint8_t *data,
                           size_t len,
                           const char *if_match,
                           bool create_only);

// Deletes an object. One that is not there counts as deleted.
//
// # Safety
// Pointers are valid.
enum BywashCode bywash_delete(const struct BywashClient *client, const char *bucket, const char *key);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BYWASH_H */
