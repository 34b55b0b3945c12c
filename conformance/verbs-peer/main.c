/* verbs_peer serve ADDR PORT           answers clients, one session after another
 * verbs_peer run ADDR PORT [TEST...]   runs the tests whose names begin with TEST (all by default), a line each */
#include "peer.h"

#include <signal.h>
#include <string.h>

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	if (argc == 4 && !strcmp(argv[1], "serve"))
		return serve(argv[2], argv[3]);
	if (argc >= 4 && !strcmp(argv[1], "run"))
		return run_tests(argv[2], argv[3], argv + 4);
	fprintf(stderr, "usage: verbs_peer serve ADDR PORT | verbs_peer run ADDR PORT [TEST...]\n");
	return 2;
}
