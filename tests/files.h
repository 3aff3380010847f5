/* Small files and folders for tests. Include after test.h. */
#ifndef FILES_H
#define FILES_H
#include <dirent.h>
#include <unistd.h>

__attribute__((unused)) static void write_bytes(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    CHECK(file && (!bytes || fwrite(data, 1, bytes, file) == bytes));
    if (file) fclose(file);
}

__attribute__((unused)) static void write_text(const char *path, const char *text) {
    write_bytes(path, text, strlen(text));
}

/* Files in a folder; removed where asked. */
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

__attribute__((unused)) static int files_in(const char *folder) {
    return list_files(folder, false);
}

__attribute__((unused)) static void empty_folder(const char *folder) {
    list_files(folder, true);
}

#endif
