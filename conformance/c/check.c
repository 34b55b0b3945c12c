#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The timeout of a test in seconds, after which it counts as hanging. */
enum { PATIENCE = 60 };

/* The pipe to which a failing test writes the reason; the process that runs the tests reads it. */
static int reason = -1;

void check_failed(const char *file, int line, const char *format, ...)
{
	char text[512];
	va_list args;
	const char *base = strrchr(file, '/');
	int n = snprintf(text, sizeof(text), "%s:%d: ", base ? base + 1 : file, line);

	va_start(args, format);
	vsnprintf(text + n, sizeof(text) - n, format, args);
	va_end(args);
	if (write(reason, text, strlen(text)) < 0)
		_exit(2);
	_exit(1);
}

int check_fork(void)
{
	int child = fork();

	CHECK(child >= 0);
	if (child == 0)
		alarm(PATIENCE);
	return child;
}

void check_child(int child)
{
	int status;

	while (waitpid(child, &status, 0) < 0)
		CHECK(errno == EINTR);
	if (WIFSIGNALED(status))
		FAIL("the child ended by signal %d", WTERMSIG(status));
	/* The child itself has reported its failure. */
	if (WEXITSTATUS(status) != 0)
		FAIL(" in the child, which ended with status %d", WEXITSTATUS(status));
}

void check_kill(int child)
{
	int status;

	CHECK(kill(child, SIGKILL) == 0);
	while (waitpid(child, &status, 0) < 0)
		CHECK(errno == EINTR);
	/* A child that ended before has failed, or crashed. */
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		FAIL(" in the child, which ended before it was killed, with wait status %#x", status);
}

static bool run(const char *program, const struct test *test)
{
	char why[1024] = "";
	size_t n = 0;
	ssize_t got;
	int fds[2], status, child;

	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0 || (child = fork()) < 0) {
		perror("check");
		exit(2);
	}
	if (child == 0) {
		close(fds[0]);
		reason = fds[1];
		alarm(PATIENCE);
		test->run();
		exit(0);
	}
	close(fds[1]);
	waitpid(child, &status, 0);
	/* Not blocking, because a grandchild may still hold the other end. */
	while (n < sizeof(why) - 1 && (got = read(fds[0], why + n, sizeof(why) - 1 - n)) > 0)
		n += got;
	close(fds[0]);
	why[n] = '\0';
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
		printf("FAIL | %s/%s | it hangs %s\n", program, test->name, why);
	else if (WIFSIGNALED(status))
		printf("FAIL | %s/%s | signal %d %s\n", program, test->name, WTERMSIG(status), why);
	else if (WEXITSTATUS(status) != 0)
		printf("FAIL | %s/%s | %s\n", program, test->name, n ? why : "exit status");
	else if (n)
		printf("FAIL | %s/%s | a child failed: %s\n", program, test->name, why);
	else
		printf("pass | %s/%s\n", program, test->name);
	fflush(stdout);
	return status == 0 && n == 0;
}

int check_main(int argc, char **argv, const struct test *tests, size_t count)
{
	const char *base = strrchr(argv[0], '/');
	const char *program = base ? base + 1 : argv[0];
	bool found = false, passed = true;

	if (argc > 1 && strcmp(argv[1], "--list") == 0) {
		for (size_t i = 0; i < count; i++)
			printf("%s/%s\n", program, tests[i].name);
		return 0;
	}
	for (size_t i = 0; i < count; i++) {
		if (argc > 1 && strcmp(argv[1], tests[i].name) != 0)
			continue;
		found = true;
		passed &= run(program, &tests[i]);
	}
	if (!found) {
		fprintf(stderr, "%s: no such test\n", program);
		return 2;
	}
	return passed ? 0 : 1;
}
