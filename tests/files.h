/* Small files and folders for tests. */
#ifndef FILES_H
#define FILES_H
#include <cjson/cJSON.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES_MAY __attribute__((unused)) static

FILES_MAY bool file_exists(const char *path) {
    return access(path, F_OK) == 0;
}

FILES_MAY bool write_bytes(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    if (!file) return false;
    bool good = !bytes || fwrite(data, 1, bytes, file) == bytes;
    return fclose(file) == 0 && good;
}

FILES_MAY bool write_text(const char *path, const char *text) {
    return write_bytes(path, text, strlen(text));
}

/* A whole file, with a NUL behind it, in memory of malloc; NULL where it cannot be read. */
FILES_MAY char *read_bytes(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    struct stat info;
    if (!file || fstat(fileno(file), &info) != 0) return file ? fclose(file), NULL : NULL;
    size_t size = (size_t)info.st_size;
    char *text = calloc(size + 1, 1);
    *bytes = text ? fread(text, 1, size, file) : 0;
    fclose(file);
    return text;
}

/* NULL where the file cannot be read or is no JSON. */
FILES_MAY cJSON *read_json(const char *path) {
    size_t bytes;
    char *text = read_bytes(path, &bytes);
    cJSON *json = text ? cJSON_Parse(text) : NULL;
    free(text);
    return json;
}

/* A folder with all that lead to it. */
FILES_MAY void make_folder(const char *folder) {
    char part[4096];
    for (size_t i = 1; i < sizeof part && folder[i - 1]; i++) {
        if (folder[i] && folder[i] != '/') continue;
        memcpy(part, folder, i);
        part[i] = 0;
        mkdir(part, 0777);
    }
}

/* Waits until no other process tests in the same folder; holds until the process ends. */
FILES_MAY bool lock_folder(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s.lock", folder);
    make_folder(folder);
    int handle = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    return handle >= 0 && flock(handle, LOCK_EX) == 0;
}

/* Counts the files of a folder, and removes them where asked. */
static int list_files(const char *folder, bool remove_them) {
    int count = 0;
    DIR *listing = opendir(folder);
    for (struct dirent *entry; listing && (entry = readdir(listing));) {
        char path[4096];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (remove_them) unlink(path);
        count++;
    }
    if (listing) closedir(listing);
    return count;
}

FILES_MAY int files_in(const char *folder) {
    return list_files(folder, false);
}

FILES_MAY void empty_folder(const char *folder) {
    list_files(folder, true);
}

#endif
