/* A machine whose clock is ahead by AHEAD seconds, for programs that are started with this in LD_PRELOAD. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t which, struct timespec *now)
{
    int failed = syscall(SYS_clock_gettime, which, now);
    const char *ahead = getenv("AHEAD");
    if (!failed && which == CLOCK_REALTIME && ahead)
        now->tv_sec += atol(ahead);
    return failed;
}
