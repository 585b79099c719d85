/* Processes that take turns under an exclusive lock, and count who is inside.
 *
 *   lock_loop KIND GIVEN SECONDS PROCESSES TIMER FILE...
 *
 * KIND: flock, fcntl, ofd; fcntl:N and ofd:N: N ranges side by side, each with a number and a lock of its own, for which each FILE has a
 * process. GIVEN: how the lock is given up: close, unlock (then close), keep (unlock; one open file for all turns).
 * TIMER: microseconds between signals that each process gets, 0 for none; every other process has SA_RESTART, the others repeat the
 * call after EINTR. A process uses one of the FILEs, which are one file seen through different mounts.
 *
 * Each turn opens the file, locks it, counts itself in shared memory, adds 1 to the number in the file, and gives the lock up. Two
 * inside at once, or a number that is not the one of the turn before, is a fault. Prints one line:
 *   turns N two-inside N lost-steps N interrupted N failed N
 * Exit status: 0 good, 1 two inside, 2 a call that failed, 3 a step that was lost.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLOTS_MAX 64

struct shared {
	_Atomic unsigned long turns, two_inside, lost_steps, interrupted, failed;
	_Atomic int inside[SLOTS_MAX];
	_Atomic uint64_t number[SLOTS_MAX];
};

static struct shared *shared;
static const char *given;
static char kind[8];
/* The number that this process changes; 0 of 1: the lock is on the whole file. */
static int slots = 1, slot;

static void on_signal(int number) { (void)number; }

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int locking(int fd, short type)
{
	for (;;) {
		int result;
		if (!strcmp(kind, "flock")) {
			result = flock(fd, type == F_UNLCK ? LOCK_UN : LOCK_EX);
		} else {
			struct flock range = { .l_type = type, .l_whence = SEEK_SET };
			if (slots > 1) {
				range.l_start = slot * sizeof(uint64_t);
				range.l_len = sizeof(uint64_t);
			}
			result = fcntl(fd, !strcmp(kind, "ofd") ? F_OFD_SETLKW : F_SETLKW, &range);
		}
		if (result == 0 || errno != EINTR)
			return result;
		shared->interrupted++;
	}
}

static void failed(const char *what, const char *file)
{
	/* Other processes of the run must not hang on a failure here. */
	if (shared->failed++ < 10)
		fprintf(stderr, "%s %s: %s\n", what, file, strerror(errno));
}

static void lost(uint64_t number, const char *file)
{
	if (shared->lost_steps++ < 10)
		fprintf(stderr, "%s: %llu instead of %llu, slot %d, turn %lu\n", file, (unsigned long long)number,
			(unsigned long long)shared->number[slot], slot, shared->turns);
}

static int transfer(int fd, uint64_t *number, int is_write)
{
	ssize_t done;
	off_t at = slot * sizeof *number;
	do
		done = is_write ? pwrite(fd, number, sizeof *number, at) : pread(fd, number, sizeof *number, at);
	while (done < 0 && errno == EINTR);
	return done == (ssize_t)sizeof *number || (done == 0 && !is_write) ? 0 : -1;
}

static void turn(int fd, const char *file)
{
	uint64_t number = 0;
	if (locking(fd, F_WRLCK) != 0) {
		failed("lock", file);
		return;
	}
	if (shared->inside[slot]++ != 0)
		shared->two_inside++;
	if (transfer(fd, &number, 0) != 0) {
		failed("read", file);
	} else {
		if (number != shared->number[slot])
			lost(number, file);
		number++;
		/* As the file will be read, even if another process is inside. */
		shared->number[slot] = number;
		if (transfer(fd, &number, 1) != 0)
			failed("write", file);
	}
	for (int spin = 0; spin < 20; spin++)
		sched_yield();
	shared->inside[slot]--;
	shared->turns++;
	if (strcmp(given, "close") != 0 && locking(fd, F_UNLCK) != 0)
		failed("unlock", file);
}

static void take_turns(const char *file, double end)
{
	int kept = -1;
	while (now() < end && shared->failed < 100) {
		int fd = kept;
		while (fd < 0) {
			fd = open(file, O_RDWR | O_CREAT, 0644);
			if (fd < 0 && errno != EINTR) {
				failed("open", file);
				return;
			}
		}
		turn(fd, file);
		if (!strcmp(given, "keep"))
			kept = fd;
		else if (close(fd) != 0)
			failed("close", file);
	}
}

int main(int argc, char **argv)
{
	if (argc < 7)
		return 2;
	if (sscanf(argv[1], "%7[a-z]:%d", kind, &slots) < 1 || slots < 1 || slots > SLOTS_MAX)
		return 2;
	given = argv[2];
	double end = now() + atof(argv[3]);
	int processes = atoi(argv[4]), period = atoi(argv[5]);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		return 2;
	int first = open(argv[6], O_RDWR | O_CREAT, 0644);
	if (first < 0)
		return 2;
	for (slot = 0; slot < slots; slot++) {
		uint64_t number = 0;
		if (transfer(first, &number, 0) != 0)
			return 2;
		shared->number[slot] = number;
	}
	if (close(first) != 0)
		return 2;
	for (int process = 0; process < processes; process++) {
		pid_t child = fork();
		if (child < 0)
			return 2;
		if (child > 0)
			continue;
		struct sigaction action = { .sa_handler = on_signal, .sa_flags = process % 2 ? SA_RESTART : 0 };
		sigaction(SIGALRM, &action, NULL);
		int each = period ? period + process * 37 : 0;
		struct itimerval timer = { { each / 1000000, each % 1000000 }, { each / 1000000, each % 1000000 } };
		setitimer(ITIMER_REAL, &timer, NULL);
		slot = process / (argc - 6) % slots;
		take_turns(argv[6 + process % (argc - 6)], end);
		_exit(0);
	}
	int status, is_killed = 0;
	while (wait(&status) > 0)
		is_killed |= !WIFEXITED(status);
	printf("turns %lu two-inside %lu lost-steps %lu interrupted %lu failed %lu\n", shared->turns, shared->two_inside,
	       shared->lost_steps, shared->interrupted, shared->failed);
	return shared->two_inside ? 1 : shared->failed || is_killed || !shared->turns ? 2 : shared->lost_steps ? 3 : 0;
}
