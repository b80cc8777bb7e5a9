<?php

foreach (['Symfony/Component/Mailer', 'Symfony/Component/Mime', 'Illuminate/Http', 'Illuminate/Support', 'GuzzleHttp'] as $part) {
    require_once "/usr/share/php/$part/autoload.php";
}
require 'app/Mail/SafedelivrTransport.php';

use App\Mail\SafedelivrTransport;
use Illuminate\Http\Client\Factory;
use Illuminate\Support\Facades\Facade;
use Symfony\Component\Mailer\Mailer;
use Symfony\Component\Mime\Address;
use Symfony\Component\Mime\Email;

Facade::setFacadeApplication(new ArrayObject([Factory::class => new Factory()]));
$mailer = new Mailer(new SafedelivrTransport(getenv('SAFEDELIVR_URL'), getenv('KEY')));
$mailer->send((new Email())
    ->from(new Address('shop@demo.test', 'Shop'))->to(new Address('ann@demo.test', 'Ann'))
    ->cc('cc@demo.test')->bcc('bcc@demo.test')->replyTo('help@demo.test')
    ->subject('Invoice {{x}}')->text('Dear {{x}}')->html('<p>Dear Ann<img src="cid:logo.gif"></p>')
    ->attach('42.00', 'invoice.txt', 'text/plain')->embed('GIF89a', 'logo.gif', 'image/gif'));
$mailer->send((new Email())->from('shop@demo.test')->to('one@demo.test', 'two@demo.test')->subject('To several')->text('Text'));
