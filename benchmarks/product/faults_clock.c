/* Preloaded into the tuner and all that it starts: the machine's clocks and disk as the campaign wants them.
 *
 * FAULTS_CLOCK names a file of three 64-bit integers: nanoseconds that CLOCK_REALTIME and CLOCK_MONOTONIC are ahead,
 * and microseconds that every fsync takes longer. Deadlines that a process made of a clock that is ahead are handed to
 * the kernel in the kernel's own time. CLOCK_BOOTTIME and CLOCK_MONOTONIC_RAW stay true.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define BILLION 1000000000LL
static const volatile int64_t none[3];
static const volatile int64_t *set = none;

__attribute__((constructor)) static void open_file(void)
{
    const char *path = getenv("FAULTS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    if (page != MAP_FAILED)
        set = page;
}

static int64_t ahead(clockid_t clock)
{
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        return set[0];
    return clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE ? set[1] : 0;
}

static struct timespec later(struct timespec time, int64_t by)
{
    int64_t whole = time.tv_sec * BILLION + time.tv_nsec + by;
    if (whole < 0)
        whole = 0;
    return (struct timespec){whole / BILLION, whole % BILLION};
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int failed = syscall(SYS_clock_gettime, clock, time);
    if (!failed)
        *time = later(*time, ahead(clock));
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *time = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *to)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to)
        *to = now.tv_sec;
    return now.tv_sec;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left)
{
    struct timespec until = *time;
    if (flags & TIMER_ABSTIME)
        until = later(until, -ahead(clock));
    return syscall(SYS_clock_nanosleep, clock, flags, &until, left) ? errno : 0;
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *until)
{
    static int (*real)(sem_t *, clockid_t, const struct timespec *);
    struct timespec then = later(*until, -ahead(clock));
    if (!real)
        real = dlsym(RTLD_NEXT, "sem_clockwait");
    return real(semaphore, clock, &then);
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    /* Which clock a condition has cannot be asked; seconds since 1970 are more than any machine has been up. */
    struct timespec then = later(*until, -ahead(until->tv_sec > BILLION / 2 ? CLOCK_REALTIME : CLOCK_MONOTONIC));
    if (!real)
        real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    return real(condition, mutex, &then);
}

static void slow_disk(void)
{
    struct timespec pause = later((struct timespec){0, 0}, set[2] * 1000);
    if (set[2])
        syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &pause, NULL);
}

int fsync(int file)
{
    slow_disk();
    return syscall(SYS_fsync, file);
}

int fdatasync(int file)
{
    slow_disk();
    return syscall(SYS_fdatasync, file);
}
