package service

// usersAtOnce is the number of users whose mail is counted at the same time.
const usersAtOnce = 8
