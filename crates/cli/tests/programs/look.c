/* Inspects the paths given as arguments, as UCX and shells do, and prints what it finds. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void look(const char *path)
{
	char text[256];
	struct stat st;
	ssize_t got;
	int fd;

	if (stat(path, &st) || lstat(path, &st) || stat(path, &st)) {
		printf("%s: nothing\n", path);
	} else if (S_ISCHR(st.st_mode)) {
		printf("%s: device%s\n", path, access(path, R_OK | W_OK) ? "" : ", read and write");
	} else if (S_ISDIR(st.st_mode)) {
		DIR *dir = opendir(path);
		struct dirent *entry;

		while (dir && (entry = readdir(dir)))
			if (entry->d_name[0] != '.')
				printf("%s: has %s\n", path, entry->d_name);
		if (dir)
			closedir(dir);
	} else {
		FILE *file = fopen(path, "r");

		fd = openat(AT_FDCWD, path, O_RDONLY);
		got = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
		text[got < 0 ? 0 : got] = 0;
		printf("%s: %s%s", path, file ? "" : "(not by fopen) ", text);
	}
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		look(argv[i]);
	return 0;
}
