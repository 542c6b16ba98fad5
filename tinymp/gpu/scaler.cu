// What a loss scaler does in an iteration, on the device. One thread each; the state stays at one address, so that a
// captured CUDA graph can go on.

enum { ITERATION, GROWTH_TRACKER, SKIPS, BAD_LOSSES, CHANGES, OVERFLOWED, COUNTS };
constexpr int NONE = 0x7fffffff;  // in `found`: every gradient is finite

// The end of an iteration: what `Side.end` and `Rule` of optim/scaler.py do on the host, in the same order.
//
// scale: S.  counts: see the enum.  found: per optimizer, the place of its first parameter whose gradient is not
// finite, or NONE; reset for the next iteration, as is bad_loss.  change_*: a ring of the last `ring` changes of S; the
// reason is 65536 times the number of the optimizer plus the place of the parameter (at most 65535), or -1 for growth.
extern "C" __global__ void end_iteration(float* scale, int* counts, int* found, int* bad_loss, int optimizers,
                                         float growth, float backoff, int interval, float least, float most,
                                         int* change_iteration, float* change_scale, int* change_reason, int ring) {
    if (threadIdx.x != 0 || blockIdx.x != 0) return;
    int overflowed = -1;
    for (int i = optimizers - 1; i >= 0; i--) {
        if (found[i] != NONE) overflowed = i * 65536 + min(found[i], 65535);
        found[i] = NONE;
    }
    float s = *scale, next = s;
    int reason = -1;
    if (*bad_loss) {  // S is not to blame, and stays
        counts[BAD_LOSSES]++;
    } else if (overflowed >= 0) {
        counts[SKIPS]++;
        counts[BAD_LOSSES] = 0;
        counts[GROWTH_TRACKER] = 0;
        counts[OVERFLOWED] = overflowed;
        next = fmaxf(s * backoff, least);
        reason = overflowed;
    } else {
        counts[SKIPS] = counts[BAD_LOSSES] = 0;
        if (++counts[GROWTH_TRACKER] >= interval) {
            counts[GROWTH_TRACKER] = 0;
            next = fminf(s * growth, most);
        }
    }
    if (next != s) {
        int place = counts[CHANGES]++ % ring;
        change_iteration[place] = counts[ITERATION];
        change_scale[place] = next;
        change_reason[place] = reason;
        *scale = next;
    }
    counts[ITERATION]++;
    *bad_loss = 0;
}
