/* A program is a table of tests. Each runs in a child process, so that one crash is one failure and no test sees
 * the leftovers of another. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct test {
	const char *name;
	void (*run)(void);
};

#define TEST(name) { #name, name }

/* Runs all tests, or the one that the command line names, or only lists them (--list). Returns the exit status: 0 if all that
 * ran have passed. */
int check_main(int argc, char **argv, const struct test *tests, size_t count);

#define CHECK_MAIN(tests)                                                             \
	int main(int argc, char **argv)                                               \
	{                                                                             \
		return check_main(argc, argv, tests, sizeof(tests) / sizeof(*tests)); \
	}

/* Ends the test as failed. */
void check_failed(const char *file, int line, const char *format, ...)
	__attribute__((noreturn, format(printf, 3, 4)));

#define FAIL(...) check_failed(__FILE__, __LINE__, __VA_ARGS__)

/* Checks that `is` holds. The message has its text and errno. */
#define CHECK(is)                                                \
	do {                                                     \
		errno = 0;                                       \
		if (!(is))                                       \
			FAIL("%s (errno %d)", #is, errno);       \
	} while (0)

/* Checks that two integers are equal. */
#define EQUAL(found, expected)                                                             \
	do {                                                                               \
		errno = 0;                                                                 \
		long long found_ = (long long)(found), expected_ = (long long)(expected);  \
		if (found_ != expected_)                                                   \
			FAIL("%s is %lld, not %s = %lld (errno %d)", #found, found_,       \
			     #expected, expected_, errno);                                 \
	} while (0)

/* Checks a call that returns an error number. */
#define RETURNS(call, error) EQUAL(call, error)

/* Checks a call that returns -1 and sets errno. */
#define SETS(call, error)                                                           \
	do {                                                                        \
		EQUAL(call, -1);                                                    \
		if (errno != (error))                                               \
			FAIL("%s sets errno %d, not " #error, #call, errno);        \
	} while (0)

/* Checks a call that returns NULL and sets errno. */
#define REFUSED(call, error)                                                        \
	do {                                                                        \
		CHECK((call) == NULL);                                              \
		if (errno != (error))                                               \
			FAIL("%s sets errno %d, not " #error, #call, errno);        \
	} while (0)

/* Forks, and returns the child's id, or 0 in the child. */
int check_fork(void);

/* Waits for a child, which must exit with status 0. */
void check_child(int child);

/* Kills a child that waits, and fails if it ended before. */
void check_kill(int child);

#endif
